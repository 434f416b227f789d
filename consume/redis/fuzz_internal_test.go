package redis

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzURL: the error for a URL does not quote its password, however the URL is written.
func FuzzURL(f *testing.F) {
	f.Add("redis://user:", "@localhost:6379/0")
	f.Add("rediss://:", "@h/1?dial_timeout=x")
	f.Add("unix://u:", "@/a@b")
	f.Add("http://a/", "@h")
	f.Fuzz(func(t *testing.T, before, after string) {
		const secret = "S3CRET"
		opts, err := parseURL(before + secret + after)
		if err != nil {
			require.NotContains(t, err.Error(), secret)
			return
		}
		require.NotEmpty(t, opts.Addr)
	})
}

// FuzzID: an id of an entry is two numbers, and 0 stands for what is none.
func FuzzID(f *testing.F) {
	for _, text := range []string{"1700000000000-5", "-", "1", "99999999999999999999-1", "1-2-3", "+1-1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		i := idOf(text)
		require.Equal(t, i, idOf(fmt.Sprintf("%d-%d", i.ms, i.n)))
	})
}
