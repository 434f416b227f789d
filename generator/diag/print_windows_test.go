package diag_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// TestPrintSlashes: programs get slashes, people the path as Windows shows it.
func TestPrintSlashes(t *testing.T) {
	t.Parallel()
	l := diag.List{at(`C:\shop\outbox.yaml`, 9, 21, "x")}
	require.Contains(t, printed(t, diag.JSON, l), `"file":"C:/shop/outbox.yaml"`)
	require.Contains(t, printed(t, diag.GitHubActions, l), "file=C%3A/shop/outbox.yaml,line=9,")
	require.Contains(t, printed(t, diag.Text, l), `C:\shop\outbox.yaml:9:21: `)
}
