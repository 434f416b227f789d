//go:build !mutation

package pgtest

import "testing"

// trace does nothing. In a build for `make mutation` it notes what a test has used of its database.
func trace(testing.TB, string) {}
