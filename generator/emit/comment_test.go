package emit

import (
	"strings"
	"testing"
	"unicode"

	"github.com/dave/jennifer/jen"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/generator/model"
)

func TestUserDoc(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		"":                              "",
		" \n\t ":                        "",
		"is emitted once":               "Turn is emitted once.",
		"was\nemitted\r\nonce.":         "Turn was emitted once.",
		"Turn is what it is":            "Turn is what it is.",
		"a turn that ended!":            "A turn that ended!",
		"records of a turn":             "Records of a turn.",
		"tenant_id comes first":         "tenant_id comes first.",
		"eBay orders":                   "eBay orders.",
		"élan":                          "Élan.",
		"ends (here)":                   "Ends (here).",
		"ends with \u202ebidi\u2069":    "Ends with bidi.",
		"is \x00\x1b[31mred\u2028//go:": "Turn is [31mred //go:",
	} {
		require.Equal(t, want, userDoc("Turn", doc), "%q", doc)
	}
}

func TestCommentSeparatesParagraphs(t *testing.T) {
	t.Parallel()
	lines := comment("", "Turn is a payload.", " \n", "A turn that ended.")
	require.Equal(t, []jen.Code{jen.Comment("// Turn is a payload."), jen.Comment("//"), jen.Comment("// A turn that ended.")}, lines)
}

func TestWrap(t *testing.T) {
	t.Parallel()
	require.Empty(t, wrap("", 10))
	require.Equal(t, []string{"one two", "three"}, wrap("one two three", 7))
	require.Equal(t, []string{"a", "verylongword", "b"}, wrap("a verylongword b", 5))
	require.Equal(t, []string{"éé éé"}, wrap("éé éé", 5), "characters count, not bytes")
}

// TestPlainIsOneLine holds for any text: the text of a comment cannot leave its line.
func TestPlainIsOneLine(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		got := model.PlainText(rapid.String().Draw(rt, "text"))
		require.Equal(rt, strings.TrimSpace(got), got)
		for _, r := range got {
			require.True(rt, r == ' ' || unicode.IsPrint(r), "%q", r)
		}
	})
}
