package attributes_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish/internal/attributes"
)

func texts(of []attributes.Attribute) []string {
	var texts []string
	for _, a := range of {
		texts = append(texts, a.Name.String()+"="+string(a.Value))
	}
	return texts
}

// TestListOfManyEvents: what events share is shared, and no event gets a value of another.
func TestListOfManyEvents(t *testing.T) {
	t.Parallel()
	var l attributes.List
	var got, want [][]string
	var kept [][]attributes.Attribute
	at := time.Date(2026, 11, 23, 1, 2, 3, 4000, time.FixedZone("", 3600))
	for n := range 300 {
		e := outbox.Event{ID: uuid.New(), Namespace: fmt.Sprint("ns", n/100), Version: n / 10, PartitionKey: fmt.Sprint("key", n/3), CreatedAt: at.Add(time.Duration(n/50) * time.Second)}
		w := []string{
			fmt.Sprint("dataversion=", max(n/10, 1)), "id=" + e.ID.String(), fmt.Sprint("partitionkey=key", n/3), fmt.Sprint("source=/ns", n/100),
			"specversion=1.0", fmt.Sprint("subject=key", n/3), "time=" + e.CreatedAt.UTC().Format(time.RFC3339Nano), "type=t",
		}
		if n%2 == 0 {
			e.TenantID = uuid.NullUUID{UUID: uuid.New(), Valid: true}
			e.Entity = outbox.Entity{Type: "user", ID: fmt.Sprint("u", n), Version: int64(n)}
			e.DedupeKey = strings.Repeat("d", n)
			e.Headers = map[string]string{"traceparent": "00-1", "tracestate": "x=1", "other": "2"}
			w = nil
			w = append(w, fmt.Sprint("dataversion=", max(n/10, 1)))
			if n > 0 {
				w = append(w, "dedupekey="+e.DedupeKey)
			}
			w = append(w, fmt.Sprint("entityid=u", n), "entitytype=user")
			if n > 0 {
				w = append(w, fmt.Sprint("entityversion=", n))
			}
			w = append(w, "id="+e.ID.String(), fmt.Sprint("partitionkey=key", n/3), fmt.Sprint("source=/ns", n/100), "specversion=1.0",
				fmt.Sprint("subject=u", n), "tenantid="+e.TenantID.UUID.String(), "time="+e.CreatedAt.UTC().Format(time.RFC3339Nano),
				"traceparent=00-1", "tracestate=x=1", "type=t")
		}
		of, err := l.Append(nil, "", "t", &e)
		require.NoError(t, err)
		for _, a := range of {
			require.Equal(t, string(a.Value), l.Text(a))
		}
		kept, want = append(kept, of), append(want, w)
	}
	for _, of := range kept { // after all were made
		got = append(got, texts(of))
	}
	require.Equal(t, want, got)
}

// TestBadValueIsNotRemembered: an event with a value that cannot be an attribute is refused each time, and others are not.
func TestBadValueIsNotRemembered(t *testing.T) {
	t.Parallel()
	var l attributes.List
	for range 2 {
		for _, key := range []string{"a\x00", "\u0085", "\ufffe", "a\xff"} {
			_, err := l.Append(nil, "", "t", &outbox.Event{PartitionKey: key})
			require.True(t, outbox.IsPermanent(err), "%q: %v", key, err)
			require.EqualError(t, err, "encode event: attribute partitionkey has a control character")
		}
		of, err := l.Append(nil, "/of/mine", "t", &outbox.Event{PartitionKey: "ä"})
		require.NoError(t, err)
		require.Equal(t, []string{"dataversion=1", "id=00000000-0000-0000-0000-000000000000", "partitionkey=ä", "source=/of/mine", "specversion=1.0", "subject=ä", "type=t"}, texts(of))
		of, err = l.Append(nil, "", "t", &outbox.Event{Namespace: "/of/mine"})
		require.NoError(t, err)
		require.Contains(t, texts(of), "source=//of/mine", "the source of a namespace is not that of the same text")
	}
}

// TestTextsAreShared: the text of an attribute is made once, and the subject shares that of its source.
func TestTextsAreShared(t *testing.T) {
	for _, e := range []outbox.Event{
		{PartitionKey: "key of some length"}, {PartitionKey: "key of some length", Entity: outbox.Entity{Type: "user", ID: "id of some length"}},
	} {
		var l attributes.List
		of, err := l.Append(nil, "", "t", &e)
		require.NoError(t, err)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			for _, a := range of {
				_ = l.Text(a)
			}
		}))
	}
}
