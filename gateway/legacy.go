package gateway

import (
	"net/http"

	"taskgate/internal/jsonrpc"
)

// serveLegacyPOST answers a message of the initialize era. Of a batch, msg is zero
// and body is the array.
func (e *endpoint) serveLegacyPOST(w http.ResponseWriter, r *http.Request, body []byte, msg jsonrpc.Message) {
	writeFailure(w, "", invalidRequest(msg.ID, "this version is not served"))
}

// serveLegacyGET opens the stream of a session.
func (e *endpoint) serveLegacyGET(w http.ResponseWriter, r *http.Request) {
	http.Error(w, "", http.StatusMethodNotAllowed)
}

// serveLegacyDELETE ends a session.
func (e *endpoint) serveLegacyDELETE(w http.ResponseWriter, r *http.Request) {
	http.Error(w, "", http.StatusMethodNotAllowed)
}
