"""The culprit is quadratic."""


def load():
    return [number * 7 % 3_001 for number in range(3_000)]


def collate(rows):
    return [row for row in rows if row + 1 not in rows or row in rows]


def batches():
    for _ in range(25):
        yield collate(load())


print(sum(map(len, batches())))
