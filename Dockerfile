# evergrow serve on processors. docker build -t evergrow .   See docs/deploy.md.
# The root may be read-only: docker run --read-only --tmpfs /tmp ...
# The digest is that of the tag in August 2026. Newer: docker pull python:3.12-slim, docker images --digests python.
FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

RUN useradd --create-home --uid 10001 evergrow && mkdir /models && chown evergrow /models
COPY pyproject.toml README.md LICENSE CHANGELOG.md /src/
COPY src /src/src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu '/src[serve,bundled,text]'

USER evergrow
VOLUME /models
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["evergrow", "serve", "/models", "--host", "0.0.0.0", "--port", "8080", "--token-file", "/run/secrets/evergrow-tokens", "--log-level", "info"]
