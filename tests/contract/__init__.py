"""The promises of lockapp, each on every engine and through both fronts.

`docs/explanation/guarantees.md` says them in words and names the file for each. A new engine is
done when a `Place` for it passes here.
"""
