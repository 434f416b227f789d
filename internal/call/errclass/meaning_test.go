package errclass

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// broken is an error whose methods do not work.
type broken struct{ call func() string }

func (b broken) Error() string { return b.call() }

// oddIs is an error that panics when it is asked what it is.
type oddIs struct{}

func (oddIs) Error() string   { return "odd" }
func (oddIs) Is(error) bool   { panic("no idea") }
func (oddIs) As(any) bool     { return false }
func (oddIs) Unwrap() []error { return nil }

var errPlain = errors.New("boom")

// TestMeaningOfMarks: each mark says what an error means, also below other errors, and Permanent comes before the others.
func TestMeaningOfMarks(t *testing.T) {
	t.Parallel()
	minute := time.Minute
	for name, c := range map[string]struct {
		err     error
		want    Result
		charged bool
		marked  bool
	}{
		"plain":               {errPlain, Result{Class: ClassFailed}, true, false},
		"permanent":           {Permanent(errPlain), Result{Class: ClassRefused}, true, true},
		"retry after":         {RetryAfter(minute, errPlain), Result{Class: ClassFailed, After: &minute}, true, true},
		"unavailable":         {Unavailable(errPlain, false), Result{Class: ClassUnavailable}, false, true},
		"broker unavailable":  {Unavailable(errPlain, true), Result{Class: ClassUnavailable, Broker: true}, false, true},
		"unimplemented":       {ErrUnimplemented, Result{Class: ClassUnavailable, Unwanted: true}, false, true},
		"behind":              {ErrBehind, Result{Class: ClassNotSent, Behind: true}, false, true},
		"not sent":            {ErrNotSent, Result{Class: ClassNotSent}, false, true},
		"permanent and more":  {Unavailable(Permanent(errPlain), true), Result{Class: ClassRefused}, true, true},
		"unavailable, behind": {Unavailable(ErrBehind, false), Result{Class: ClassUnavailable}, false, true},
		"unavailable, later":  {RetryAfter(minute, Unavailable(errPlain, false)), Result{Class: ClassUnavailable, After: &minute}, false, true},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err), errors.Join(errors.New("other"), c.err)} {
			c.want.Text = err.Error()
			require.Equal(t, c.want, Of(err), name)
			require.Equal(t, c.charged, Of(err).Class.Charged(), name)
			require.Equal(t, c.marked, Marked(err), name)
		}
	}
	require.False(t, ClassDone.Charged())
	require.Equal(t, minute, Of(RetryAfter(minute, errPlain)).Delay(time.Second, time.Second, 1))
	require.Equal(t, time.Second, Of(errPlain).DelayBy(func(d time.Duration) time.Duration { return d }, time.Second, time.Second, 1))
	require.Zero(t, *Of(RetryAfter(-minute, errPlain)).After)
}

// TestMarksOfNil: no error stays no error, whatever mark it is given.
func TestMarksOfNil(t *testing.T) {
	t.Parallel()
	require.NoError(t, Permanent(nil))
	require.NoError(t, Wait(nil))
	require.NoError(t, RetryAfter(time.Second, nil))
	require.NoError(t, Unavailable(nil, true))
	require.False(t, IsPermanent(errPlain))
	is, broker := IsUnavailable(errPlain)
	require.False(t, is)
	require.False(t, broker)
	is, broker = IsUnavailable(Unavailable(errPlain, false))
	require.True(t, is)
	require.False(t, broker)
	require.Equal(t, Result{}, Of(nil))
}

// TestResultsAreInOrder: each error has its result, and one whose methods do not work costs the others nothing.
func TestResultsAreInOrder(t *testing.T) {
	t.Parallel()
	require.Equal(t, []Result{{}, {}}, All([]error{nil, nil}))
	got := All([]error{
		nil, errPlain, broken{func() string { panic("S3CRET") }}, nil, oddIs{},
		broken{func() string { runtime.Goexit(); return "" }}, Permanent(errPlain),
	})
	require.Equal(t, []Class{ClassDone, ClassFailed, ClassFailed, ClassDone, ClassFailed, ClassFailed, ClassRefused}, classes(got))
	require.Empty(t, got[0].Text)
	require.Equal(t, "boom", got[1].Text)
	require.Contains(t, got[2].Text, "its method Error panicked")
	require.Regexp(t, `^odd; asked what it is, it panicked`, got[4].Text)
	require.Contains(t, got[5].Text, "the returned error called runtime.Goexit")
	require.Equal(t, "boom", got[6].Text)
}

func classes(results []Result) (all []Class) {
	for _, r := range results {
		all = append(all, r.Class)
	}
	return all
}

// TestTextThatIsKept: a text is cut at MaxBytes, before a rune that does not fit, and is UTF-8 without NUL.
func TestTextThatIsKept(t *testing.T) {
	t.Parallel()
	full, one := strings.Repeat("a", MaxBytes), strings.Repeat("a", MaxBytes-1)
	for text, want := range map[string]string{
		"":                                 "",
		full:                               full,
		full + "b":                         full,
		one + "é":                          one,
		one + "b€":                         one + "b",
		full[:MaxBytes-3] + "€" + "b":      full[:MaxBytes-3] + "€",
		full[:MaxBytes-2] + "€":            full[:MaxBytes-2],
		full[:MaxBytes-3] + "😀b":           full[:MaxBytes-3],
		"a\x00b\xffc":                      "a?b?c",
		strings.Repeat("\x80", 2*MaxBytes): "?",
		// Of what is not text, no more is left out than a rune may have.
		full[:MaxBytes-4] + strings.Repeat("\x80", 8): full[:MaxBytes-4],
	} {
		require.Equal(t, want, Text(text), "%.20q", text)
	}
}

// TestStorable: what the encoding of the database does not have is written as an escape, and nothing longer than
// MaxBytes.
func TestStorable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, encoding, want string }{
		{"日", "UTF8", "日"}, {"日", "SQL_ASCII", "日"}, {"日", "", "日"},
		{"ÿĀ日", "LATIN1", `ÿ\u0100\u65e5`}, {"a\x7fÿ", "WIN1251", "a\x7f\\u00ff"},
		{strings.Repeat("a", MaxBytes), "LATIN1", strings.Repeat("a", MaxBytes)},
		{strings.Repeat("日", MaxBytes/6+1), "LATIN1", strings.Repeat(`\u65e5`, MaxBytes/6)},
	} {
		require.Equal(t, c.want, Storable(c.text, c.encoding), "%.20q as %s", c.text, c.encoding)
	}
}

// TestAway: these classes of SQLSTATE are about the connection, and the others about the statement.
func TestAway(t *testing.T) {
	t.Parallel()
	for code, away := range map[string]bool{
		"08006": true, "53300": true, "57P01": true, "57P03": true,
		"57014": false, "40001": false, "23505": false, "": false,
	} {
		require.Equal(t, away, IsAway(code), code)
	}
}
