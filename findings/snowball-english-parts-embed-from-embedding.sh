#!/bin/sh
# PyStemmer 3.1.0 (Snowball's stemmers, algorithm "english").
# Snowball joins "shred", "shredded" and "shredding" in one stem. Of "embed" it takes the last two letters for the ending of a past tense, and of
# "embedded" and "embedding" one ending, so that a search for the verb finds none of its other forms; the stem of the stem is the same for all.
# Seen: shred ['shred', 'shred', 'shred'] embed ['emb', 'embed', 'embed'] twice ['emb', 'emb', 'emb'].
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q "PyStemmer==3.1.0" 2>/dev/null
cat >"$folder/run.py" <<'PROGRAM'
import Stemmer

stem = Stemmer.Stemmer("english").stemWord
shred, embed = [stem(w) for w in ("shred", "shredded", "shredding")], [stem(w) for w in ("embed", "embedded", "embedding")]
twice = [stem(w) for w in embed]
print("shred", shred, "embed", embed, "twice", twice)
assert shred == ["shred"] * 3
assert embed == ["emb", "embed", "embed"]
assert twice == ["emb"] * 3
PROGRAM
"$folder/env/bin/python" "$folder/run.py"
