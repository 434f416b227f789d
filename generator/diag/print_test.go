package diag_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/generator/diag"
)

func printed(t require.TestingT, format diag.Format, l diag.List) string {
	var out strings.Builder
	require.NoError(t, diag.Print(&out, format, l))
	return out.String()
}

func TestPrintText(t *testing.T) {
	t.Parallel()
	l := diag.List{at("outbox.yaml", 9, 21, `dedupe_key: unknown field "turn"`), at("a\x1bb.yaml", 1, 1, "raw \x1b[31m\nnext \u202e")}
	require.Equal(t, "outbox.yaml:9:21: dedupe_key: unknown field \"turn\" [unknown-key]\n"+
		`a\x1bb.yaml:1:1: raw \x1b[31m\nnext \u202e [unknown-key]`+"\n", printed(t, diag.Text, l))
}

func TestPrintJSON(t *testing.T) {
	t.Parallel()
	l := diag.List{at("outbox.yaml", 9, 21, `unknown field "turn" <b>`), at("b.yaml", 1, 2, "x")}
	require.Equal(t, `{"file":"outbox.yaml","line":9,"column":21,"rule":"unknown-key","message":"unknown field \"turn\" <b>","severity":"error"}
{"file":"b.yaml","line":1,"column":2,"rule":"unknown-key","message":"x","severity":"error"}
`, printed(t, diag.JSON, l))
}

func TestPrintGitHubActions(t *testing.T) {
	t.Parallel()
	odd := at("a,b:c%.yaml", 3, 4, "100% of a: b, c")
	odd.Severity = diag.Warning
	l := diag.List{at("outbox.yaml", 9, 21, `unknown field "turn"`), odd}
	require.Equal(t, `::error file=outbox.yaml,line=9,col=21,title=unknown-key::unknown field "turn"
::warning file=a%2Cb%3Ac%25.yaml,line=3,col=4,title=unknown-key::100%25 of a: b, c
`, printed(t, diag.GitHubActions, l))
}

func TestPrintReportsWriteErrors(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, diag.Print(brokenWriter{}, diag.Text, diag.List{at("a", 1, 1, "x")}), "write findings: broken")
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken") }

func TestParseFormat(t *testing.T) {
	t.Parallel()
	for _, want := range diag.Formats() {
		got, err := diag.ParseFormat(string(want))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := diag.ParseFormat("xml")
	require.EqualError(t, err, `unknown format "xml": use text, json or github-actions`)
}

// Whatever a finding holds, each printer writes one line without control characters.
func TestPrintIsOneCleanLine(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := at(rapid.String().Draw(t, "file"), 1, 1, string(rapid.SliceOf(rapid.Byte()).Draw(t, "message")))
		for _, format := range diag.Formats() {
			out := printed(t, format, diag.List{d})
			line, rest, found := strings.Cut(out, "\n")
			require.True(t, found)
			require.Empty(t, rest)
			require.Equal(t, -1, strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }), "%q", line)
			if format == diag.JSON {
				var back struct{ File, Message string }
				require.NoError(t, json.Unmarshal([]byte(out), &back))
				require.Equal(t, strings.ToValidUTF8(d.Pos.File, "\uFFFD"), back.File)
			}
		}
	})
}
