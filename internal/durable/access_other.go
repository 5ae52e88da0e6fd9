//go:build !unix

package durable

// CheckAccess finds nothing: access is no matter of modes here.
func CheckAccess(string) (warning, err error) { return nil, nil }
