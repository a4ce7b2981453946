"""Google's generateContent wire."""
