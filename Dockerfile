# Serves an exported policy, without PyTorch:
#   rl-training export runs/... --out policy && docker build --build-arg POLICY=policy -t policy .
#   docker run -p 8000:8000 -e RL_TRAINING_TOKEN=... policy
FROM python:3.12-slim

# rl-training without its dependencies, which bring PyTorch; then what the server alone needs
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN pip install --no-cache-dir --no-deps /source \
 && pip install --no-cache-dir "numpy>=1.26" "typer>=0.16" "rich>=13.7" "pydantic>=2.7" \
    "onnxruntime>=1.20" "uvicorn>=0.30" "websockets>=13" "httptools>=0.6" "uvloop>=0.19" \
 && rm -r /source \
 && useradd --system --no-create-home policy

ARG POLICY=policy
COPY ${POLICY} /policy
USER policy
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
# reachable from outside the container, so it needs RL_TRAINING_TOKEN
CMD ["rl-training", "serve", "/policy", "--host", "0.0.0.0", "--port", "8000"]
