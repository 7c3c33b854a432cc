"""The culprit is a function in C that is called by a method."""

import unicodedata


class Tokenizer:
    def encode(self, text):
        return unicodedata.normalize("NFKD", text).split()


def main():
    tokenizer = Tokenizer()
    text = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich " * 2_000
    for _ in range(70):
        tokenizer.encode(text)


main()
