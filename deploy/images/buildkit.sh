# To be read by `.`: the function buildkit, which is `docker build` with BuildKit. Clients since 23 have it as the plugin
# buildx, Debian's 20.10 in itself; where the first `docker` on PATH lacks it, another may not.
buildkit() {
    ifs=$IFS
    IFS=:
    for folder in $PATH; do
        if [ -x "$folder/docker" ] && DOCKER_BUILDKIT=1 "$folder/docker" build --help >/dev/null 2>&1; then
            IFS=$ifs
            DOCKER_BUILDKIT=1 "$folder/docker" build "$@"
            return
        fi
    done
    IFS=$ifs
    echo "no docker on PATH has BuildKit: install the plugin buildx, or Debian's docker.io" >&2
    return 3
}
