"""The main job, end to end: a conversation ten times its window, in LangChain, then questioned through LlamaIndex."""
