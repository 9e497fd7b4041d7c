# plugin.toml + the library's name and hash -> NAME.qeplugin.toml (plugin-authors.md, "manifest").
file(SHA256 ${LIBRARY} hash)
get_filename_component(library ${LIBRARY} NAME)
file(READ ${SOURCE} text)
file(WRITE ${OUTPUT}.tmp "# Written by the build from plugin.toml.\nlibrary = \"${library}\"\nsha256  = \"${hash}\"\n${text}")
file(RENAME ${OUTPUT}.tmp ${OUTPUT})
