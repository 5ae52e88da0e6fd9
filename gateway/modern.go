package gateway

import (
	"net/http"

	"taskgate/internal/jsonrpc"
)

func (e *endpoint) serveModernPOST(w http.ResponseWriter, r *http.Request, msg jsonrpc.Message) {
	writeFailure(w, "", methodNotFound(msg.Method))
}
