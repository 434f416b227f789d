package generator_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
)

// TestStubs writes hand-written code into a folder and checks which stubs are still missing.
func TestStubs(t *testing.T) {
	t.Parallel()
	const typeStub, methodStub = "create mini_chat_handlers.go", "create handle_turn_finalized.go"
	for name, test := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"nothing written": {nil, []string{methodStub, typeStub}},
		"both files there": {map[string]string{
			"mini_chat_handlers.go":    "package events\ntype MiniChatHandler struct{}\n",
			"handle_turn_finalized.go": "package events\n",
		}, nil},
		"type elsewhere":  {map[string]string{"a.go": "package events\ntype MiniChatHandler struct{}"}, []string{methodStub}},
		"type in a group": {map[string]string{"a.go": "package events\ntype (\n\tx int\n\tMiniChatHandler struct{}\n)"}, []string{methodStub}},
		"type and method elsewhere": {map[string]string{
			"a.go": "package events\ntype MiniChatHandler struct{}\nfunc (h MiniChatHandler) HandleTurnFinalized() {}",
		}, nil},
		"method by pointer": {map[string]string{
			"a.go": "package events\ntype MiniChatHandler struct{}\nfunc (h *MiniChatHandler) HandleTurnFinalized() {}",
		}, nil},
		"generic type": {map[string]string{
			"a.go": "package events\ntype MiniChatHandler[T any] struct{}\nfunc (h *MiniChatHandler[T]) HandleTurnFinalized() {}",
		}, nil},
		"decorator next to the type": {map[string]string{
			"a.go": "package events\ntype MiniChatHandler struct{}\ntype logging struct{}\nfunc (l logging) HandleTurnFinalized() {}",
		}, []string{methodStub}},
		"type of their own": {map[string]string{"a.go": "package events\ntype chats struct{}\nfunc (c *chats) HandleTurnFinalized() {}"}, nil},
		"type file emptied": {map[string]string{"mini_chat_handlers.go": "package events\n"}, nil},
		"opted out":         {map[string]string{"a.go": "package events\ntype MiniChatHandler struct{ UnimplementedMiniChatHandlers }"}, nil},
		"only in a test":    {map[string]string{"a_test.go": "package events\ntype MiniChatHandler struct{}"}, []string{methodStub, typeStub}},
		"not a Go file":     {map[string]string{"a.go.txt": "package events\ntype MiniChatHandler struct{}"}, []string{methodStub, typeStub}},
		"does not parse":    {map[string]string{"a.go": "package events\ntype MiniChatHandler struct{}\nfunc (h MiniChatHandler) HandleTurnFinalized( {"}, nil},
		"no Go at all":      {map[string]string{"a.go": "\x00"}, []string{methodStub, typeStub}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.ElementsMatch(t, test.want, missing(t, minichat(t), test.files))
		})
	}
}

// TestStubsOfListeners has two listeners of one topic, whose handlers have a method of the same name.
func TestStubsOfListeners(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(filepath.Join("testdata", "listeners", "outbox.yaml"))
	require.NoError(t, err)
	broadcast := []string{"create broadcast_handlers.go", "create broadcast_handle_message_created.go"}
	companion := []string{"create companion_handlers.go", "create companion_handle_message_created.go", "create companion_handle_thread_closed.go"}
	const first = "package events\ntype BroadcastHandler struct{}\nfunc (h *BroadcastHandler) HandleMessageCreated() {}\n"
	for name, test := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"nothing written":             {nil, slices.Concat(broadcast, companion)},
		"a second listener is added":  {map[string]string{"a.go": first}, companion},
		"its type is there, too":      {map[string]string{"a.go": first + "type CompanionHandler struct{}"}, companion[1:]},
		"it opts out":                 {map[string]string{"a.go": first + "type CompanionHandler struct{ UnimplementedCompanionHandlers }"}, nil},
		"it has a type of their own":  {map[string]string{"a.go": first + "type reader struct{}\nfunc (reader) HandleThreadClosed() {}"}, nil},
		"one type of theirs for both": {map[string]string{"a.go": "package events\ntype hub struct{}\nfunc (hub) HandleMessageCreated() {}"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.ElementsMatch(t, test.want, missing(t, source, test.files))
		})
	}
}

// missing generates source into a folder of hand-written files, and returns what the stubs would change.
func missing(t *testing.T, source []byte, written map[string]string) []string {
	t.Helper()
	dir := t.TempDir()
	changes, err := generator.Plan(dir, generate(t, source, generator.Options{Stubs: generator.StubsNone}))
	require.NoError(t, err)
	require.NoError(t, changes.Write())
	for file, content := range written {
		put(t, dir, file, content)
	}
	changes, err = generator.Plan(dir, generate(t, source, generator.Options{}))
	require.NoError(t, err)
	return kinds(changes)
}
