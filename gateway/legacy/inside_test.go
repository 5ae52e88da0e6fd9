package legacy_test

import (
	"reflect"

	"taskgate/gateway"
	"taskgate/gateway/legacy"
	"taskgate/gateway/wire"
)

// tableOf is the session table of a gateway, which only the gateway has.
func tableOf(g *gateway.Gateway) *legacy.Table {
	return (*legacy.Table)(reflect.ValueOf(g).Elem().FieldByName("sessions").UnsafePointer())
}

// streamsOf are the open streams of a gateway.
func streamsOf(g *gateway.Gateway) *wire.Streams {
	return (*wire.Streams)(reflect.ValueOf(g).Elem().FieldByName("streams").UnsafePointer())
}
