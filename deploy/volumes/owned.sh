#!/bin/sh
# Gives volumes to the user that a server runs as. owned.sh UID FOLDER... The folder itself comes last, so that one that
# was interrupted is begun again; a folder that is the user's already is not looked through.
set -eu
user=$1
shift
for folder in "$@"; do
    [ "$(stat -c %u "$folder")" = "$user" ] && continue
    find "$folder" -mindepth 1 -exec chown -h "$user:$user" {} +
    chown "$user:$user" "$folder"
    echo "$folder belongs to user $user now"
done
