package yamlmask_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzPayload: whatever a payload looks like, no value of a sensitive field, and none that the YAML does not describe, is in
// what is shown.
func FuzzPayload(f *testing.F) {
	f.Add([]byte(`{"number":1,"customer":{"name":"Ann","contacts":[{"email":"S3CRET","city":"Rome"}]},"token":"S3CRET"}`))
	f.Add([]byte(`{"token":"x","token":"S3CRET","Token":"S3CRET","\u0074oken":"S3CRET"}`))
	f.Add([]byte(`{"state":["S3CRET"],"tags":"S3CRET","card":{"name":"S3CRET"},"number":{"a":"S3CRET"}}`))
	f.Add([]byte(`["S3CRET"]`))
	m := masker(f)
	// These may hold any text, so the marker must not be in them.
	open := []string{"extra", "tags", "name", "city", "state", "number"}
	f.Fuzz(func(t *testing.T, payload []byte) {
		shown, ok := m.Payload("shop/order_paid", payload)
		if !ok {
			require.Empty(t, shown)
			return
		}
		require.True(t, json.Valid(shown), "%s", shown)
		for _, name := range open {
			if strings.Contains(string(shown), `"`+name+`"`) {
				return
			}
		}
		require.NotContains(t, string(shown), "S3CRET")
		again, ok := m.Payload("shop/order_paid", shown)
		require.True(t, ok)
		require.JSONEq(t, string(shown), string(again))
	})
}
