package wrap

import "strings"

// harmless are the methods that pass unjudged: they set up a session, list, and
// read. Written as the protocol spells them.
var harmless = []string{
	methodInitialize, "ping", methodDiscover, methodToolsList, "prompts/list", "prompts/get", "resources/list", "resources/read",
	"resources/templates/list", "resources/subscribe", "resources/unsubscribe", methodListen, "completion/complete", "logging/setLevel",
}

// calls are the methods that call a tool.
var calls = []string{"tools/call", "call_tool"}

// Methods and notifications that mean something to us.
const (
	methodInitialize  = "initialize"
	methodDiscover    = "server/discover"
	methodToolsList   = "tools/list"
	methodListen      = "subscriptions/listen" // is answered when it ends
	notifyPrefix      = "notifications/"
	notifyInitialized = "notifications/initialized"
	notifyCancelled   = "notifications/cancelled"
	notifyListChanged = "notifications/tools/list_changed"
	notifyProgress    = "notifications/progress"
)

// kind says what becomes of a message of the client.
type kind int

const (
	judged kind = iota // by the daemon's list of methods
	passed
	called // by the daemon, as a call of a tool
)

// classify returns what a method is, and how it is spelled to the server. A server
// may be laxer in reading names than the protocol is; the spelling is the one that
// was understood here.
func classify(method string, notification bool) (kind, string) {
	method = strings.TrimSpace(method)
	for _, known := range calls {
		if strings.EqualFold(method, known) {
			return called, known
		}
	}
	for _, known := range harmless {
		if strings.EqualFold(method, known) {
			return passed, known
		}
	}
	if notification && len(method) > len(notifyPrefix) && strings.EqualFold(method[:len(notifyPrefix)], notifyPrefix) {
		for _, known := range []string{notifyInitialized, notifyCancelled} {
			if strings.EqualFold(method, known) {
				return passed, known
			}
		}
		return passed, method
	}
	return judged, method
}
