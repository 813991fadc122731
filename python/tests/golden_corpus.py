"""More than ten thousand strings on which tokenizers are known to disagree, made by rule.

The cases that users reported, and every place where the Unicode category of two neighbouring code
points differs, each in the contexts that decide how text is cut into words.
"""

import functools
import sys
import unicodedata

REPORTED = [
    "a   b",
    "\t\t\n\n",
    "12345",
    "don't",
    "\u2029",
    "e\u0301",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "",
    " ",
    "   ",
    "a ",
    " a",
    "a \n b",
    "a\r\n\r\nb",
    "DON'T we'LL I'd y'all's",
    "1234567890 12 345,678.90",
    "x=1;y==2!=3",
    "\u00a0\u2003\u3000a\u200b",
    "\ufeffBOM",
    "\x00\x01\x7f",
    "<|endoftext|>",
    "a<|endoftext|>b",
    "<|endoftext",
    "\u00e9 \u1e9b\u0323 \ufb01",
    "\u4f60\u597d\uff0c\u4e16\u754c",
    "\u0915\u094d\u0937\u093f",
    "\U0001f1e9\U0001f1ea\U0001f3f4\U000e0067",
    "\U0010ffff\U0010fffd",
    "def f(x):\n\treturn  x\n\n\n# end   \n",
]


def category_edges():
    """Code points on both sides of each change of category, surrogates aside."""
    before = unicodedata.category(chr(0))
    for code in range(1, sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category != before:
            for edge in (code - 1, code):
                if unicodedata.category(chr(edge)) != "Cs":
                    yield chr(edge)
        before = category


@functools.cache
def strings() -> tuple[str, ...]:
    edges = sorted(set(category_edges()))
    made = [pattern.format(c) for c in edges for pattern in ("{0}", "a{0}b", " {0}1 {0}{0}\n")]
    return tuple(REPORTED + made)
