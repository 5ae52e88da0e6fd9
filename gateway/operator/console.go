package operator

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed console
var console embed.FS

// serveConsole serves the files of the page.
func serveConsole(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		writeError(w, http.StatusMethodNotAllowed, "the console is read with GET")
		return
	}
	files, _ := fs.Sub(console, "console") // fails only for a bad path
	http.StripPrefix("/console", http.FileServerFS(files)).ServeHTTP(w, r)
}
