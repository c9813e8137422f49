# The image of Headwater: the binary, the four libraries it loads, a user, licences and the software bill of materials. No shell.
#
#   docker build --tag headwater:0.1.0 --build-arg COMMIT=$(git rev-parse HEAD) .
#   docker build --target symbols --output symbols .        the debug symbols of the same build
#
# `cargo xtask image` builds the same files without a registry, and runs the image. Both use `xtask/src/release/root_filesystem.rs`.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /source
COPY . .
# `headwater version` shows it; the build folder has no Git history.
ARG COMMIT=""
ENV HEADWATER_BUILD_COMMIT=${COMMIT}
RUN cargo xtask root-filesystem /image

FROM scratch AS symbols
COPY --from=build /image/symbols /

FROM scratch
ARG COMMIT=""
LABEL org.opencontainers.image.title="headwater" \
      org.opencontainers.image.description="Keeps MongoDB read models in step with a MongoDB event store, through Azure Service Bus" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image/root /
# /var/lib/headwater belongs to the user, and so does a new named volume that is mounted there.
COPY --from=build --chown=65532:65532 /image/data /var/lib/
USER 65532:65532
WORKDIR /var/lib/headwater
ENTRYPOINT ["/usr/bin/headwater"]
CMD ["run"]
