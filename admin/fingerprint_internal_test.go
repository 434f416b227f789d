package admin

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFingerprintLeavesOutWhatDiffers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                         "",
		"handler failed":           "handler failed",
		"can't connect, won't try": "can't connect, won't try",
		"user 42 of 7 is unknown":  "user <n> of <n> is unknown",
		"took 1.5s, limit 300ms":   "took <n>s, limit <n>ms",
		"dial tcp 10.0.3.17:5432: connect: refused":                                       "dial tcp <address>: connect: refused",
		"dial tcp [fe80::1]:443: i/o timeout":                                             "dial tcp [<address>]:<n>: i/o timeout",
		"lookup db-3.internal:5432 failed":                                                "lookup db-<n>.internal:<n> failed",
		"event 0190a5c2-7b1e-7c00-8000-0123456789ab is gone":                              "event <id> is gone",
		`key "a/b" and 'c d' and ` + "`e`":                                                "key <value> and <value> and <value>",
		`unclosed "quote of 3`:                                                            `unclosed "quote of <n>`,
		`escaped "a \" b" 1`:                                                              "escaped <value> <n>",
		"at 2026-11-22T10:11:12.345Z and 2026/11/22 10:11:12 and 10:11:12+02, 2026-11-22": "at <time> and <time> and <time>, <time>",
		"object 0xc000123abc, commit deadbeef01, trace 01J9ZQ4T5V7W8X9Y":                  "object <id>, commit <id>, trace <id>",
		"deadbeef is a word of hex letters":                                               "deadbeef is a word of hex letters",
		"two\n\tlines  here":                                                              "two lines here",
		"naïve café 3":                                                                    "naïve café <n>",
	} {
		require.Equal(t, want, fingerprint(text), "%q", text)
	}
}

func TestFingerprintIsBounded(t *testing.T) {
	t.Parallel()
	long := ""
	for i := range 1000 {
		long += fmt.Sprintf("word %d and ", i)
	}
	require.Less(t, len(fingerprint(long)), fingerprintLength+20)
	require.Equal(t, fingerprint(long), fingerprint(long+"more"))
}

func TestGroupsAreOfATopicAndAListener(t *testing.T) {
	t.Parallel()
	ids := map[string]bool{}
	for _, c := range [][4]string{{"a", "b", "", "x 1"}, {"a", "c", "", "x 1"}, {"a", "b", "ears", "x 1"}, {"a", "b", "", "y 1"}} {
		ids[groupID(c[0], c[1], c[2], c[3])] = true
	}
	require.Len(t, ids, 4)
	require.Equal(t, groupID("a", "b", "", "x 1"), groupID("a", "b", "", "x 22"))
	require.Len(t, groupID("a", "b", "", ""), 12)
}

func FuzzFingerprint(f *testing.F) {
	f.Add(`dial tcp 10.0.3.17:5432: "x" 2026-11-22T10:11:12+`)
	f.Add("::1 [::]:80 '' \" 0x")
	f.Fuzz(func(t *testing.T, text string) {
		require.LessOrEqual(t, len(fingerprint(text)), fingerprintLength+20)
	})
}
