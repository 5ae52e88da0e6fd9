package gateway_test

import (
	"testing"
	"time"

	"taskgate/gateway"
	"taskgate/gateway/gatewaytest"
)

func TestLocalSessions(t *testing.T) {
	gatewaytest.Sessions(t, func(_ *testing.T, limit int, idle time.Duration) []gateway.Sessions {
		return []gateway.Sessions{gateway.NewLocalSessions(limit, idle)}
	})
}
