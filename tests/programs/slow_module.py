"""Takes its time when it is imported."""

TABLE = [sum(range(number % 500)) for number in range(150_000)]
