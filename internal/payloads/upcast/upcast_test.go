package upcast

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/payload"
)

type (
	one   struct{ A int }
	two   struct{ B int }
	three struct{ C int }
)

func chain(err error) Chain {
	return Chain{
		payload.Upcast[one, two](3, func(old one) (two, error) { return two{old.A + 1}, err }),
		payload.Upcast[two, three](4, func(old two) (three, error) { return three{old.B * 10}, nil }),
	}
}

func TestChain(t *testing.T) {
	t.Parallel()
	c := chain(nil)
	made, err := c.From(3).Run(&one{1}, reflect.TypeFor[three]())
	require.NoError(t, err)
	require.Equal(t, &three{20}, made)
	made, err = c.From(4).Run(&two{1}, reflect.TypeFor[three]())
	require.NoError(t, err)
	require.Equal(t, &three{10}, made)
	require.Empty(t, c.From(5), "the present version")
	require.Len(t, c.From(1), 2, "older than the history: it was decoded as the oldest type")
	require.Empty(t, Chain(nil).From(1))
}

// An error of a step is permanent, unless the step has marked it.
func TestErrorsOfSteps(t *testing.T) {
	t.Parallel()
	broken := errors.New("no such currency")
	for _, c := range []struct {
		err  error
		want errclass.Class
	}{
		{broken, errclass.ClassRefused},
		{errclass.Permanent(broken), errclass.ClassRefused},
		{errclass.RetryAfter(time.Minute, broken), errclass.ClassFailed},
		{errclass.Unavailable(broken, false), errclass.ClassUnavailable},
	} {
		_, err := chain(c.err).From(3).Run(&one{1}, reflect.TypeFor[three]())
		require.ErrorIs(t, err, broken)
		r := errclass.Of(err)
		require.Equal(t, c.want, r.Class)
		require.Equal(t, "upcast payload from version 3: no such currency", r.Text)
	}
}

// A history that was written by hand may not fit together.
func TestStepsThatDoNotMeet(t *testing.T) {
	t.Parallel()
	_, err := chain(nil)[:1].Run(&one{1}, reflect.TypeFor[three]())
	require.EqualError(t, err, "upcast payload: the history of the topic has a step to upcast.two where upcast.three must follow")
	_, err = chain(nil).From(4).Run(&one{1}, reflect.TypeFor[three]())
	require.ErrorContains(t, err, "a step to upcast.one where upcast.two must follow")
	require.False(t, errclass.IsPermanent(err), "another build may be right")
}
