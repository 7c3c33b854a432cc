"""The culprit is the import of a module inside a function."""


def prepare():
    import slow_module

    return len(slow_module.TABLE)


def work():
    return sum(range(4_000_000))


print(prepare() + work() > 0)
