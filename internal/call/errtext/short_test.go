package errtext_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
)

// The end of an error says why, and its beginning may repeat other columns.
func TestShort(t *testing.T) {
	t.Parallel()
	require.Empty(t, errtext.Short(""))
	require.Equal(t, "a b c", errtext.Short(" a\n\tb\r\x1b\u202e c\x00"))
	for _, prefix := range []string{
		"consume users/user_renamed version 1, event 01a2091f-7641-7c00-8000-0123456789ab: ", "consume users/user_renamed version 12: ", "consume users: ",
	} {
		require.Equal(t, "no card of user 17", errtext.Short(prefix+"no card of user 17"))
		require.Equal(t, "first", errtext.Short(prefix+"first\n"+strings.Repeat("stack ", 100)))
	}
	customer := `post event to "22222222-0000-7000-8000-000000000000" at 10.0.0.1:8080: 10.0.0.1 is not a public address`
	require.Equal(t, customer, errtext.Short(customer))
	require.Equal(t, strings.Repeat("ü", 200), errtext.Short(strings.Repeat("ü", 200)))
	require.Equal(t, strings.Repeat("ü", 98)+"..."+strings.Repeat("é", 99), errtext.Short(strings.Repeat("ü", 150)+strings.Repeat("é", 150)))
}
