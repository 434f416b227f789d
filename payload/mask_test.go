package payload_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/payload"
)

type login struct {
	User     string
	Password string
	Hint     *string
	Raw      []byte
	Next     *int
	Roles    []string
}

func (l login) Format(s fmt.State, _ rune) { payload.FormatMasked(s, l, "Password", "Hint") }

func TestFormatMasked(t *testing.T) {
	t.Parallel()
	l := login{User: "ann", Password: secret, Hint: pointer(secret), Raw: []byte("r\n"), Roles: []string{"admin"}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		require.Equal(t, `{User:ann Password:[masked] Hint:[masked] Raw:"r\n" Next:<nil> Roles:[admin]}`, fmt.Sprintf(verb, l))
	}
	l.Next = pointer(7)
	var b bytes.Buffer
	payload.FormatMasked(&b, l)
	require.Contains(t, b.String(), "Next:7")
	require.Equal(t, "<nil>", fmt.Sprint((*login)(nil)))
}
