// Command bareproxy is the shortest reverse proxy that can be written in Go: the measure of what a hop costs.
package main

import (
	"flag"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "address to serve on")
	to := flag.String("to", "", "URL of the server")
	flag.Parse()
	target, err := url.Parse(*to)
	if err != nil {
		log.Fatal(err)
	}
	target.Path = ""
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	server := &http.Server{Addr: *listen, Handler: proxy, ReadHeaderTimeout: time.Minute}
	log.Fatal(server.ListenAndServe())
}
