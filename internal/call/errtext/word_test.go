package errtext_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
)

func TestWord(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"order/4711": "order/4711", "": "''", "a b": "'a b'", "$(rm x)": "'$(rm x)'", "it's": `'it'\''s'`, "`x`": "'`x`'", "ü": "'ü'",
	} {
		require.Equal(t, want, errtext.Word(word))
	}
}
