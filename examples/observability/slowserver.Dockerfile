FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -o /slowserver ./examples/slowserver

FROM scratch
COPY --from=build /slowserver /slowserver
USER 65532:65532
ENTRYPOINT ["/slowserver", "--listen", ":3001"]
