# The gateway alone, in an image with nothing else but certificate authorities.
#
#   docker build -t taskgate .
#   docker run -p 8080:8080 -v ./taskgate.yaml:/etc/taskgate.yaml:ro taskgate serve --config /etc/taskgate.yaml
#
# In a container, listen on all interfaces: "listen: :8080" in the configuration.

FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o /taskgate ./cmd/taskgate

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /taskgate /taskgate
# By number, so that an orchestrator can see that it is not root.
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/taskgate"]
