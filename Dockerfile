# The gateway alone, in an image with nothing else but certificate authorities.
#
#   docker build -t taskgate .                    builds it from source
#   docker build -t taskgate --target release .   takes the binary of "make snapshot"
#   docker run -p 8080:8080 -v taskgate:/var/lib/taskgate -v ./taskgate.yaml:/etc/taskgate.yaml:ro taskgate serve --config /etc/taskgate.yaml
#
# In a container, listen on all interfaces: "listen: :8080" in the configuration. Tasks are in
# a volume: "-v taskgate:/var/lib/taskgate" lets the next container go on with them.

FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS go
RUN mkdir /state

FROM go AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETARCH
RUN CGO_ENABLED=0 GOARCH=$TARGETARCH go build -trimpath -tags grpcnotrace -ldflags '-s -w' -o /taskgate ./cmd/taskgate

FROM scratch AS base
COPY --from=go /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=go --chown=65532:65532 /state /var/lib/taskgate
ENV STATE_DIRECTORY=/var/lib/taskgate
VOLUME /var/lib/taskgate
# By number, so that an orchestrator can see that it is not root.
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/taskgate"]

FROM base AS release
ARG TARGETARCH
COPY dist/linux_$TARGETARCH/taskgate /taskgate

FROM base
COPY --from=build /taskgate /taskgate
