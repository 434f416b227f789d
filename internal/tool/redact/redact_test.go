package redact_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/tool/redact"
)

func TestMask(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"postgres://u:sesame@h:5432/d":                 "postgres://u:xxxxx@h:5432/d",
		"postgres://u:ses/ame@h/d":                     "postgres://u:xxxxx@h/d",
		"postgres://u:ses?a#m@e@h/d?sslmode=disable":   "postgres://u:xxxxx@h/d?sslmode=disable",
		"postgres://sesame@h/d":                        "postgres://xxxxx@h/d",
		"postgres://:sesame@h/d":                       "postgres://xxxxx@h/d",
		"postgres://se/same:x@h/d":                     "postgres://xxxxx@h/d",
		"nats://a:b@h:4222,nats://token@i":             "nats://a:xxxxx@i",
		`parse "postgres://u:sesame@h": bad`:           `parse "postgres://u:xxxxx@h": bad`,
		"cannot reach https://h/p and https://u:p@i":   "cannot reach https://h/p and https://u:xxxxx@i",
		"host=h password=sesame dbname=d":              "host=h password=xxxxx dbname=d",
		`host=h password = 'se \' same' sslpassword=x`: "host=h password = xxxxx sslpassword=xxxxx",
		`host=h password=ses\ ame dbname=d`:            "host=h password=xxxxx dbname=d",
		"PASSWORD='sesame":                             "PASSWORD=xxxxx",
		"no secret: a@b, password of the user":         "no secret: a@b, password of the user",
	} {
		require.Equal(t, want, redact.Mask(text))
	}
}

func TestMaskIn(t *testing.T) {
	t.Parallel()
	for whole, want := range map[string]string{
		`postgres://u:ses "a\me@h/d`: `unknown command "postgres://u:xxxxx@h/d"`,
		"host=h password=ses same":   `unknown command "xxxxx"`,
		"nonsense":                   `unknown command "nonsense"`,
	} {
		require.Equal(t, want, redact.MaskIn("unknown command "+strconv.Quote(whole), whole))
		require.NotContains(t, redact.MaskIn(whole, whole), "same")
	}
}

func TestMaskQuoted(t *testing.T) {
	t.Parallel()
	require.Equal(t, `a "xxxxx" 'xxxxx' `+"`xxxxx` a/b", redact.MaskQuoted(`a "a/b" 'a%2Fb' `+"`a/b` a/b", "a/b"))
	require.Equal(t, `""`, redact.MaskQuoted(`""`, ""))
}

// A URL that a parser would cut in the middle of the password is refused before it is parsed.
func TestCheckURL(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"postgres://u:12/34@h/d", "postgres://u:12?34@h/d", "postgres://u:12#34@h/d", "postgres://u:a@b/c@h/d", "postgres://u:a@b:c@h/d", "postgres://h/d?application_name=a@b"} {
		require.ErrorIs(t, redact.CheckURL(text), redact.ErrAmbiguous, text)
		require.NotContains(t, redact.CheckURL(text).Error(), "12")
	}
	for _, text := range []string{"", "host=h password=a/b@c", "postgres://u:a%2Fb%40@h/d", "postgres://h/d", "postgres:///d?host=/run/x"} {
		require.NoError(t, redact.CheckURL(text), text)
	}
}
