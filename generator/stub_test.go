package generator_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
)

// TestStubs writes hand-written code into a folder and tells which stubs are still missing.
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
		"decorator beside the type": {map[string]string{
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
			dir := t.TempDir()
			changes, err := generator.Plan(dir, generate(t, minichat(t), generator.Options{Stubs: generator.StubsNone}))
			require.NoError(t, err)
			require.NoError(t, changes.Write())
			for file, content := range test.files {
				put(t, dir, file, content)
			}
			changes, err = generator.Plan(dir, generate(t, minichat(t), generator.Options{}))
			require.NoError(t, err)
			require.ElementsMatch(t, test.want, kinds(changes))
		})
	}
}
