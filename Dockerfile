# An image with nothing but outboxgen, for those who operate: docs/inside/releasing.md says how to build and use it.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS=linux TARGETARCH=amd64 VERSION="(devel)" REVISION CREATED
# The flags of tools/binaries: with the same Go release the program is the one in the archive.
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH GOFLAGS= go build -trimpath -buildvcs=false -ldflags \
	"-s -w -buildid= -X 'github.com/outboxgen/outboxgen/cmd/outboxgen/internal/cli.stamp=$VERSION $REVISION $CREATED'" \
	-o /out/outboxgen ./cmd/outboxgen

FROM scratch
ARG VERSION="(devel)" REVISION CREATED
LABEL org.opencontainers.image.title="outboxgen" \
	org.opencontainers.image.description="Transactional outbox for Go and PostgreSQL: the command line" \
	org.opencontainers.image.source="https://github.com/outboxgen/outboxgen" \
	org.opencontainers.image.licenses="MIT" \
	org.opencontainers.image.version=$VERSION \
	org.opencontainers.image.revision=$REVISION \
	org.opencontainers.image.created=$CREATED
# For sslmode=verify-full with a certificate of a public authority. Mount your own and name it with sslrootcert.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/outboxgen /usr/local/bin/outboxgen
WORKDIR /data
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/outboxgen"]
