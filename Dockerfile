# qengine in a container, for the CPU:
#
#   docker build -t qengine --build-arg QE_COMMIT="$(git describe --always --dirty)" .
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/models:/models:ro" qengine serve /models/NAME --host 0.0.0.0
#
# The build needs the Debian packages of cmake/packages.txt and nothing else from outside.
FROM debian:12-slim AS build
WORKDIR /src
COPY cmake/packages.txt cmake/setup.sh cmake/
RUN bash cmake/setup.sh && rm -rf /var/lib/apt/lists/*
COPY . .
ARG QE_COMMIT
RUN cmake --preset release && cmake --build build/release && cmake --install build/release --prefix /opt/qengine

FROM debian:12-slim
# What `ldd` says of the program and its plugins; ca-certificates for `bench serve` against https.
RUN apt-get update && apt-get install -y --no-install-recommends libboost-program-options1.74.0 libspdlog1.10 libfmt9 libtomlplusplus3 libpcre2-8-0 libicu72 libnettle8 libssl3 libedit2 libstdc++6 ca-certificates \
 && rm -rf /var/lib/apt/lists/* && useradd --system --no-create-home --home-dir /var/lib/qengine qengine && install -d -o qengine -g qengine /var/lib/qengine
COPY --from=build /opt/qengine /usr/local
USER qengine
# Where a canary's state is kept; a volume makes it outlive the container.
ENV STATE_DIRECTORY=/var/lib/qengine
EXPOSE 8000
# SIGTERM drains; docker stop waits 10 s unless told otherwise, so: docker stop -t 45.
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=60s CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8000 && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && head -1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["/usr/local/bin/qengine"]
CMD ["--help"]
