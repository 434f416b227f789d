package receive

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
)

// FuzzEnvelope: a message that is kept comes back as it was, whatever bytes its parts have, and a column that nobody has
// written is an error.
func FuzzEnvelope(f *testing.F) {
	f.Add("application/json", "id", "7", "h", "v", []byte("{}"), `{"content_type":{"base64":"*"}}`)
	f.Add("\xff", "\x00", "\xf0\x9f\x98\x80", "Zoë", "\xed\xa0\x80", []byte{0}, `{"headers":{"a":{"base64":"/w=="}}}`)
	f.Fuzz(func(t *testing.T, contentType, attribute, value, header, text string, body []byte, column string) {
		m := consume.Message{
			ContentType: contentType, Attributes: map[string]string{attribute: value}, Headers: map[string]string{header: text}, Body: body,
		}
		kept, err := envelopeOf(m)
		require.NoError(t, err)
		for _, c := range []byte(kept) {
			require.Less(t, c, byte(utf8.RuneSelf))
		}
		back, err := messageOf(kept, body)
		require.NoError(t, err)
		// JSON has no names that are not UTF-8: those of a broker are ASCII.
		if utf8.ValidString(attribute) && utf8.ValidString(header) {
			require.Equal(t, m, back)
		}
		if other, err := messageOf(column, body); err == nil {
			again, err := envelopeOf(other)
			require.NoError(t, err)
			same, err := messageOf(again, body)
			require.NoError(t, err)
			require.Equal(t, other, same)
		}
	})
}
