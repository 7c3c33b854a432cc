"""A service whose endpoint runs in a pool of threads."""

import os
import time

from fastapi import FastAPI

app = FastAPI()


def decode():
    until = time.thread_time() + 0.4
    while time.thread_time() < until:
        pass


@app.get("/")
def generate():
    decode()
    return os.getpid()
