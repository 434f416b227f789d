package emit

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTypeDoc(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		"":                              "Turn is the payload of a/turn.",
		" \n\t ":                        "Turn is the payload of a/turn.",
		"is emitted once":               "Turn is emitted once.",
		"was\nemitted\r\nonce.":         "Turn was emitted once.",
		"Turn is what it is":            "Turn is what it is.",
		"a turn that ended!":            "Turn is the payload of a/turn. A turn that ended!",
		"records of a turn":             "Turn is the payload of a/turn. Records of a turn.",
		"tenant_id comes first":         "Turn is the payload of a/turn. tenant_id comes first.",
		"eBay orders":                   "Turn is the payload of a/turn. eBay orders.",
		"élan":                          "Turn is the payload of a/turn. Élan.",
		"ends (here)":                   "Turn is the payload of a/turn. Ends (here).",
		"ends with \u202ebidi\u2069":    "Turn is the payload of a/turn. Ends with bidi.",
		"is \x00\x1b[31mred\u2028//go:": "Turn is [31mred //go:",
	} {
		require.Equal(t, want, typeDoc("Turn", "the payload of a/turn", doc), "%q", doc)
	}
}

func TestFieldDoc(t *testing.T) {
	t.Parallel()
	require.Empty(t, fieldDoc("Count", "\n"))
	require.Equal(t, "Count is how many.", fieldDoc("Count", "is how many"))
	require.Equal(t, "How many.", fieldDoc("Count", "how many"))
}

func TestWrap(t *testing.T) {
	t.Parallel()
	require.Empty(t, wrap("", 10))
	require.Equal(t, []string{"one two", "three"}, wrap("one two three", 7))
	require.Equal(t, []string{"a", "verylongword", "b"}, wrap("a verylongword b", 5))
	require.Equal(t, []string{"éé éé"}, wrap("éé éé", 5), "characters count, not bytes")
}

// TestPlainIsOneLine holds for any text: what goes into a comment cannot leave its line.
func TestPlainIsOneLine(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		got := plain(rapid.String().Draw(rt, "text"))
		require.Equal(rt, strings.TrimSpace(got), got)
		for _, r := range got {
			require.True(rt, r == ' ' || unicode.IsPrint(r), "%q", r)
		}
	})
}
