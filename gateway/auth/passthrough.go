package auth

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"taskgate/gateway/config"
	"taskgate/internal/work"
	"taskgate/shim"
)

// passthrough lets the server decide who may call: the header Authorization goes on to it with the request.
// The gateway finds the caller only to know whose task is whose, since requests about tasks end at the
// gateway. So it also refuses a token that is known to be bad, and the client gets another one.
type passthrough struct {
	cfg      *config.Passthrough
	page     string   // where clients find the server's metadata, at the gateway
	public   []string // audiences that need no metadata
	claims   bool     // of verified tokens are kept, for the principals of tools
	secret   []byte   // of the hashes of tokens that cannot be verified
	resource *Resource
	tokens   *tokenCache
	log      *slog.Logger
	web      fetcher // towards issuers
	work     *work.Background

	known   *verifications // of verified tokens
	others  *verifications // of tokens that only the server knows, and that it has taken or refused
	asking  singleflight.Group
	lookups *lookups
	// lookupTimeout differs from the constant in tests only.
	lookupTimeout time.Duration

	mu     sync.Mutex // guards trust
	trust  *trust     // nil before the first metadata
	warned sync.Once

	broken, invalid *Refusal
}

// verification is what was found out about a token.
type verification struct {
	verdict  verdict
	names    names // if it is verified, as is grade
	grade    grade
	until    time.Time // it is believed until then
	grant    *grant    // of a JWT; nil for none
	standing *standing
}

// verifications are by the hashes of tokens.
type verifications = lru.Cache[[sha256.Size]byte, *verification]

const (
	// maxLookups bounds the tokens that are looked up at a time: more would only wait at their issuer.
	maxLookups = 64
	// lookupTimeout bounds one look-up of a token. A request that it is too short for is refused with 503.
	lookupTimeout = 10 * time.Second
	// remember is how long an answer of introspection is believed, and how long a token stays unverified.
	rememberFor = time.Minute
)

// verdict says what is known of a token.
type verdict int

const (
	unverified verdict = iota // its owner is unknown
	verified                  // it is good, and its owner is known
	refuted                   // it is bad, or no longer good
)

// notAsked is of a token that was not looked up: it is at the next request, once the server has taken it.
var notAsked = &verification{verdict: unverified}

// unverifiedPrefix begins the principals of those whose token cannot be verified.
const unverifiedPrefix = "token:"

// ShareOf is the share of limits that the owner of a stored task has. Anybody may have made up an unverified one.
func ShareOf(owner string) shim.Share {
	if strings.HasPrefix(owner, unverifiedPrefix) {
		return shim.Share{}
	}
	return shim.Share{Owner: owner}
}

func (m *Methods) passthrough(c *config.Config, u *config.Upstream, secure *tls.Config) Method {
	cfg := c.AuthOf(u).Passthrough
	log := m.log.With("upstream", u.Name)
	known, _ := lru.New[[sha256.Size]byte, *verification](MaxTokens) // fails only for size 0
	others, _ := lru.New[[sha256.Size]byte, *verification](MaxTokens)
	p := &passthrough{
		cfg: cfg, claims: u.NamesPrincipals(), page: c.PublicURL + MetadataPath(u),
		public: append(sameAddress(c.PublicURL+u.Path, u.URL), c.Audiences(u, cfg.Audiences)...), secret: m.secret,
		resource: newResource(u, c.PublicURL, secure, m.work, log), tokens: m.tokens[u.Name], log: log, web: newFetcher(nil), work: m.work, known: known, others: others, lookups: newLookups(maxLookups), lookupTimeout: lookupTimeout,
	}
	p.broken = challengeWith(http.StatusBadRequest, p.page, "invalid_request", "Authorization must be there once, and one credential", nil)
	p.invalid = challengeWith(http.StatusUnauthorized, p.page, "invalid_token", "the token is not valid any more", nil)
	return p
}

// tokenSecret is the key of the hashes that stand for tokens which cannot be verified. All replicas share
// it; a gateway without state keys is alone, and makes its own. A plain hash could be reversed by guessing:
// Authorization may hold less than a long random token.
func tokenSecret(c *config.Config) ([]byte, error) {
	if len(c.StateKeys) == 0 {
		secret := make([]byte, sha256.Size)
		_, _ = rand.Read(secret) // never fails
		return secret, nil
	}
	secret, err := c.StateKeys[0].Secret()
	if err != nil {
		return nil, fmt.Errorf("state_keys[0]: %w", err)
	}
	return hkdf.Key(sha256.New, secret, nil, "taskgate principal of a token", sha256.Size)
}

// maxCredential bounds the value of Authorization, in bytes.
const maxCredential = 16 << 10

// Identify finds the owner of a request's token. A request without a token is anonymous. A request with an
// unknown token is let through too: the server decides about both.
func (p *passthrough) Identify(r *http.Request) (Caller, *Refusal) {
	values := r.Header[headerAuthorization]
	switch {
	case len(values) == 0:
		return p.callerOf(r.Context(), shim.Principal{}, p.tokens.putToken(&shown{}), nil), nil
	case trimValue(values[0]) == "", len(values[0]) > maxCredential:
		return Caller{}, p.broken
	}
	token, found := readBearer(r.Header)
	switch found {
	case absent: // another scheme
		return p.byToken(r.Context(), values[0], nil), nil
	case broken:
		return Caller{}, p.broken
	}
	f, err := p.findOut(r.Context(), token, AddressOf(r))
	switch {
	case errors.Is(err, errTooMany): // the server decides, as about a token that nobody can verify
		if f = p.lastFoundOut(sha256.Sum256([]byte(token))); f == nil {
			f = notAsked
		}
		return p.byToken(r.Context(), values[0], f), nil
	case err != nil:
		p.log.DebugContext(r.Context(), "a token cannot be looked up", "reason", err)
		return Caller{}, unverifiable
	case f.verdict == refuted:
		return Caller{}, p.invalid
	case f.verdict == verified:
		return p.bySubject(r.Context(), values[0], f), nil
	}
	return p.byToken(r.Context(), values[0], f), nil
}

// Recall finds the owner of a token that was verified before.
func (p *passthrough) Recall(r *http.Request) string {
	token, found := readBearer(r.Header)
	if found != present {
		return ""
	}
	if f, ok := p.known.Peek(sha256.Sum256([]byte(token))); ok && f.verdict == verified && time.Now().Before(f.until) {
		return f.grade.Owner
	}
	return ""
}

// bySubject is a caller who is known by a verified token.
func (p *passthrough) bySubject(ctx context.Context, authorization string, f *verification) Caller {
	t := &shown{grade: f.grade, authorization: authorization, verified: true, standing: f.standing}
	t.Hash = p.hashShown(authorization)
	c := p.callerOf(ctx, shim.Principal{Subject: t.Owner}, p.tokens.putToken(t), f)
	c.names = f.names
	return c
}

// byToken is a caller who is only known by the token itself.
func (p *passthrough) byToken(ctx context.Context, authorization string, f *verification) Caller {
	hash := p.hashShown(authorization)
	who := shim.Principal{Subject: unverifiedPrefix + hash, NoTasks: p.cfg.Unverified == config.UnverifiedBlock}
	if p.cfg.Unverified == config.UnverifiedBlock {
		p.warned.Do(func() {
			p.log.Warn("a token cannot be verified, so its caller gets no tasks; nor do others with such a token (auth.passthrough.unverified)")
		})
	}
	t := &shown{grade: grade{Owner: who.Subject, Hash: hash}, authorization: authorization}
	if f != nil {
		t.standing = f.standing
	}
	return p.callerOf(ctx, who, p.tokens.putToken(t), f)
}

// hashShown stands for the credential of a request, on every replica.
func (p *passthrough) hashShown(authorization string) string {
	h := hmac.New(sha256.New, p.secret)
	h.Write([]byte(trimValue(authorization)))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// callerOf is the caller of a request that goes to the server with its credential.
func (p *passthrough) callerOf(ctx context.Context, who shim.Principal, own *shown, f *verification) Caller {
	p.tokens.askReplicas(ctx, own)
	noTasks := who.NoTasks
	who.NoTasks = noTasks || own.standing.isRefused()
	heard := func(authorization string, a answer) { p.hearServer(own, f, authorization, a) }
	credential := &Credential{from: p.tokens, need: own.grade, own: own, heard: heard}
	return Caller{Principal: who, request: &passedOn{own: own, invalid: p.invalid, credential: credential, noTasks: noTasks}}
}

// hearServer takes what the server says to a request with a credential. An unverified token is remembered only
// from then on, by its hash.
func (p *passthrough) hearServer(own *shown, f *verification, authorization string, a answer) {
	if authorization != own.authorization {
		return
	}
	if f == nil || f.verdict == unverified {
		scheme, token, _ := strings.Cut(trimValue(authorization), " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return
		}
		hash := sha256.Sum256([]byte(strings.TrimLeft(token, " ")))
		if known, ok := p.others.Peek(hash); ok {
			f = known
		} else {
			asked := f != notAsked
			if f = newVerification(unverified); !asked {
				f.until = time.Time{}
			}
			f.standing = own.standing
			p.others.Add(hash, f)
		}
	}
	f.standing.noteAnswer(a)
}

// findOut returns what is known of a token, and looks it up if needed: once for all requests with the
// token.
func (p *passthrough) findOut(ctx context.Context, token, address string) (*verification, error) {
	hash := sha256.Sum256([]byte(token))
	if f := p.lastFoundOut(hash); f.isBelieved(ctx, time.Now()) {
		return f, nil
	}
	return work.Once(ctx, p.work, &p.asking, string(hash[:]), func(ctx context.Context) (*verification, error) {
		before := p.lastFoundOut(hash) // it may have been found out since
		if before.isBelieved(ctx, time.Now()) {
			return before, nil
		}
		ctx, stop := context.WithTimeout(ctx, p.lookupTimeout)
		defer stop()
		f, err := p.lookUp(ctx, token, address, before)
		if err != nil {
			return nil, err
		}
		if f.standing = newStanding(f.verdict == verified); before != nil {
			f.standing = before.standing
			f.standing.known.CompareAndSwap(false, f.verdict == verified)
		}
		switch {
		case f.verdict == verified, p.known.Contains(hash): // it is, or was, verified
			p.known.Add(hash, f)
		case before != nil: // the server has answered to it
			p.others.Add(hash, f)
		}
		return f, nil
	})
}

// lastFoundOut is the last verification of a token, of any age; nil for none.
func (p *passthrough) lastFoundOut(hash [sha256.Size]byte) *verification {
	if f, ok := p.known.Get(hash); ok {
		return f
	}
	f, _ := p.others.Get(hash)
	return f
}

// isBelieved reports whether a verification is still believed. A token is verified anew if its issuer has
// withdrawn the key that signed it.
func (f *verification) isBelieved(ctx context.Context, now time.Time) bool {
	return f != nil && now.Before(f.until) && (f.grant == nil || f.grant.isSigned(ctx))
}
