"""The two culprits are a regular expression and JSON, both in an endpoint of FastAPI."""

import json
import multiprocessing
import re
import urllib.request

import uvicorn
from fastapi import FastAPI

BLANKS = re.compile(r"(\s*\w+\s*)+$")
TABLE = {str(number): list(range(20)) for number in range(8_000)}
app = FastAPI()


def is_clean(text):
    return BLANKS.match(text) is not None


def explain():
    return json.dumps(TABLE, indent=1)


@app.get("/check")
def check():
    return [is_clean("a" * 19 + "!"), len(explain())]


def ask(port):
    for _ in range(12):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/check") as answer:
            print(answer.read().decode(), flush=True)


class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        self.client = multiprocessing.Process(target=ask, args=(port,))
        self.client.start()

    async def on_tick(self, counter):
        return await super().on_tick(counter) or not self.client.is_alive()


Server(uvicorn.Config(app, port=0, log_level="error")).run()
