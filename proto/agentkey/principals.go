package agentkey

// Principals are headers by which proxies say who asks. A gateway takes them out of
// each request, believes none of them, and tells the daemon which there were. A name
// that ends in - stands for all that begin so. The list is closed: only these names
// are in the log.
var Principals = []string{
	"cf-access-authenticated-user-email", "remote-user", "x-amzn-oidc-", "x-auth-request-", "x-authenticated-", "x-custodian-",
	"x-forwarded-email", "x-forwarded-groups", "x-forwarded-preferred-username", "x-forwarded-user", "x-goog-authenticated-user-",
	"x-ms-client-principal", "x-ms-client-principal-", "x-principal", "x-remote-", "x-sb-", "x-subject", "x-tenant", "x-user", "x-user-",
	"x-webauth-user",
}

// MaxFlags is how many of them are told of one request.
const MaxFlags = 16

// Routes: how a key is used at a gateway, in a session that was opened for it or
// without one.
const (
	Stateful  = "stateful"
	Stateless = "stateless"
)
