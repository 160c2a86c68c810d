"""A web service that describes an uploaded file of exported programs, without running its code.

python safe_loader.py 8000
curl -T model.pt2 http://127.0.0.1:8000/inspect
"""

import asyncio
import json
import os
import resource
import sys
import tempfile
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request

MOST_BYTES = int(os.environ.get("MOST_BYTES", "67108864"))  # the maximum size of an upload
MEMORY = 1 << 30  # the maximum bytes of memory of a reader
SECONDS = 10  # the maximum processor time of a reader
READERS = asyncio.Semaphore(2)  # at most two readers at a time

app = FastAPI()


@app.put("/inspect")
async def inspect(request: Request) -> Any:
    """Describe the file in the body of a request."""
    with tempfile.NamedTemporaryFile(suffix=".pt2") as upload:
        async for chunk in request.stream():
            if upload.tell() + len(chunk) > MOST_BYTES:  # Content-Length may be wrong
                raise HTTPException(413, f"more than {MOST_BYTES} bytes")
            upload.write(chunk)
        upload.flush()
        async with READERS:
            return await summary(upload.name)


async def summary(path: str) -> Any:
    """Return the output of `fxpress inspect`, which does not import torch or open pickles."""
    command = (sys.executable, "-m", "fxpress", "inspect", "--json", path)
    pipe = asyncio.subprocess.PIPE
    reader = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    resource.prlimit(reader.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.prlimit(reader.pid, resource.RLIMIT_CPU, (SECONDS, SECONDS))
    out, error = await reader.communicate()
    if reader.returncode != 0:
        has_reason = reader.returncode == 2  # the file is damaged, or of another format
        why = error.decode(errors="replace").replace(path, "upload") if has_reason else "too costly"
        raise HTTPException(422, why.strip())
    return {**json.loads(out), "path": "upload"}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), limit_concurrency=16)
