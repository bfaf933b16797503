use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use jsonwebtoken::{EncodingKey, encode};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256, RsaKeySize};
use serde_json::json;

use super::*;

/// A provider's key: its signing half, and its published half.
struct TestSigner {
    algorithm: Algorithm,
    key: EncodingKey,
    published: Value,
}

fn es256() -> TestSigner {
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let (x, y) = pair.public_key_raw()[1..].split_at(32);
    let published =
        json!({"kty": "EC", "crv": "P-256", "kid": "e", "x": BASE64.encode(x), "y": BASE64.encode(y)});
    TestSigner {
        algorithm: Algorithm::ES256,
        key: EncodingKey::from_ec_der(pair.serialized_der()),
        published,
    }
}

fn eddsa() -> TestSigner {
    let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let x = BASE64.encode(pair.public_key_raw());
    let published = json!({"kty": "OKP", "crv": "Ed25519", "kid": "d", "use": "sig", "x": x});
    TestSigner {
        algorithm: Algorithm::EdDSA,
        key: EncodingKey::from_ed_der(pair.serialized_der()),
        published,
    }
}

fn rs256() -> TestSigner {
    let pair = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    // The key itself follows 26 bytes that identify it as an RSA key.
    let key = EncodingKey::from_rsa_der(&pair.serialized_der()[26..]);
    let mut published =
        serde_json::to_value(Jwk::from_encoding_key(&key, Algorithm::RS256).unwrap()).unwrap();
    published["kid"] = "r".into();
    TestSigner { algorithm: Algorithm::RS256, key, published }
}

impl TestSigner {
    fn sign(&self, claims: &Value) -> String {
        let kid = self.published["kid"].as_str().map(str::to_owned);
        encode(&Header { kid, ..Header::new(self.algorithm) }, claims, &self.key).unwrap()
    }
}

impl TokenVerifier {
    fn verify_blocking(&self, token: &str) -> Result<Caller, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.check(token))
    }
}

fn tokens(keys: &[&Value]) -> TokenVerifier {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("plimsoll-jwks-{}-{number}", std::process::id()));
    std::fs::write(&path, json!({ "keys": keys }).to_string()).unwrap();
    let (issuer, audience) = ("https://id.example.org".to_owned(), vec!["plimsoll".to_owned()]);
    TokenVerifier::open(JwtSettings { issuer, audience, keys: KeySet::File(path) }).unwrap()
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

fn claims() -> Value {
    json!({
        "iss": "https://id.example.org", "aud": "plimsoll", "sub": "alice", "exp": now() + 300,
        "groups": ["sre", "web"], "email": "alice@example.org", "odd": 1,
    })
}

fn claims_with(key: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[key] = value;
    claims
}

#[test]
fn tokens_of_each_algorithm_name_their_subject_and_claims() {
    let signers = [es256(), eddsa(), rs256()];
    let published: Vec<&Value> = signers.iter().map(|signer| &signer.published).collect();
    let tokens = tokens(&published);
    for signer in &signers {
        let caller = tokens.verify_blocking(&signer.sign(&claims())).unwrap();
        assert_eq!((caller.name.as_str(), &caller.claims["groups"][1]), ("alice", &"web".to_owned()));
        assert_eq!(caller.claims["email"], ["alice@example.org"]);
        assert!(!caller.claims.contains_key("odd") && caller.valid_until.unwrap() > now());
    }
}

#[test]
fn what_a_token_says_must_be_right() {
    let signer = es256();
    let tokens = tokens(&[&signer.published]);
    for (claims, why) in [
        (claims_with("exp", json!(now() - 31)), "has expired"),
        (claims_with("nbf", json!(now() + 60)), "not valid yet"),
        (claims_with("iss", json!("https://evil.example.org")), "another issuer"),
        (claims_with("aud", json!("another")), "another audience"),
        (claims_with("aud", json!(["another", "third"])), "another audience"),
        (claims_with("sub", json!("")), "names no subject"),
    ] {
        let said = tokens.verify_blocking(&signer.sign(&claims)).unwrap_err();
        assert!(said.contains(why), "{claims}: {said}");
    }
    for missing in ["exp", "iss", "aud", "sub"] {
        let mut claims = claims();
        claims.as_object_mut().unwrap().remove(missing);
        assert!(tokens.verify_blocking(&signer.sign(&claims)).is_err(), "{missing}");
    }
    // Clocks differ a little.
    for claims in [
        claims_with("exp", json!(now() - 10)),
        claims_with("nbf", json!(now() + 10)),
        claims_with("aud", json!(["x", "plimsoll"])),
    ] {
        assert!(tokens.verify_blocking(&signer.sign(&claims)).is_ok(), "{claims}");
    }
}

#[test]
fn nobody_else_can_sign() {
    let (signer, stranger) = (es256(), es256());
    let tokens = tokens(&[&signer.published]);
    let said = tokens.verify_blocking(&stranger.sign(&claims())).unwrap_err();
    assert!(said.contains("signature is wrong"), "{said}");

    let good = signer.sign(&claims());
    let parts: Vec<&str> = good.split('.').collect();
    let other = BASE64.encode(claims_with("sub", json!("root")).to_string());
    let altered = format!("{}.{other}.{}", parts[0], parts[2]);
    assert!(tokens.verify_blocking(&altered).is_err());

    let body = parts[1];
    for header in [r#"{"alg":"none"}"#, r#"{"alg":"None","kid":"e"}"#, r#"{"kid":"e"}"#] {
        for signature in ["", parts[2]] {
            let token = format!("{}.{body}.{signature}", BASE64.encode(header));
            assert!(tokens.verify_blocking(&token).is_err(), "{header}");
        }
    }
    // The public key, which is not secret, used as an HMAC secret.
    for secret in [signer.published.to_string(), signer.published["x"].as_str().unwrap().to_owned()] {
        let header = Header { kid: Some("e".into()), ..Header::new(Algorithm::HS256) };
        let token = encode(&header, &claims(), &EncodingKey::from_secret(secret.as_bytes())).unwrap();
        let said = tokens.verify_blocking(&token).unwrap_err();
        assert!(said.contains("not known here"), "{said}");
    }
    let header =
        Header { kid: Some("e".into()), crit: Some(vec!["b64".into()]), ..Header::new(Algorithm::ES256) };
    let said = tokens.verify_blocking(&encode(&header, &claims(), &signer.key).unwrap()).unwrap_err();
    assert!(said.contains("extensions"), "{said}");
    for garbage in ["", "a", "a.b", "a.b.c", "..", "a.b.c.d", &"x".repeat(9000)] {
        assert!(tokens.verify_blocking(garbage).is_err());
    }
}

#[test]
fn a_key_is_chosen_by_its_id_and_must_be_for_signatures() {
    let (one, mut two) = (es256(), es256());
    two.published["kid"] = "f".into();
    let both = tokens(&[&one.published, &two.published]);
    assert!(
        both.verify_blocking(&one.sign(&claims())).is_ok()
            && both.verify_blocking(&two.sign(&claims())).is_ok()
    );
    let bare = encode(&Header::new(Algorithm::ES256), &claims(), &one.key).unwrap();
    assert!(both.verify_blocking(&bare).unwrap_err().contains("which of several keys"));
    assert!(tokens(&[&one.published]).verify_blocking(&bare).is_ok());

    let symmetric = json!({"kty": "oct", "k": "c2VjcmV0", "kid": "s"});
    let mut sealing = two.published.clone();
    sealing["use"] = "enc".into();
    let mut other = two.published.clone();
    other["alg"] = "ES384".into();
    let odd = json!({"kty": "OKP", "crv": "X448", "x": "AAAA"});
    let some = tokens(&[&one.published, &symmetric, &sealing, &other, &odd]);
    assert!(some.verify_blocking(&one.sign(&claims())).is_ok());
    assert!(some.verify_blocking(&two.sign(&claims())).is_err());
    for set in [json!({"keys": [symmetric]}), json!({"keys": []}), json!([]), json!("x")] {
        assert!(keys(set.to_string().as_bytes()).is_err(), "{set}");
    }
}

#[test]
fn keys_are_exchanged_while_it_runs() {
    let (old, new) = (es256(), eddsa());
    let tokens = tokens(&[&old.published]);
    let KeySet::File(path) = tokens.config.keys.clone() else { panic!("not a file") };
    std::fs::write(&path, json!({"keys": [old.published, new.published]}).to_string()).unwrap();
    assert!(
        tokens.verify_blocking(&old.sign(&claims())).is_ok()
            && tokens.verify_blocking(&new.sign(&claims())).is_ok()
    );
    std::fs::write(&path, json!({"keys": [new.published]}).to_string()).unwrap();
    assert!(
        tokens.verify_blocking(&old.sign(&claims())).is_err()
            && tokens.verify_blocking(&new.sign(&claims())).is_ok()
    );
    std::fs::write(&path, "{").unwrap();
    assert!(tokens.verify_blocking(&new.sign(&claims())).is_ok(), "what was read before stays");
}

#[tokio::test]
async fn a_key_that_is_not_known_is_looked_for_where_keys_are_published() {
    let (old, mut new) = (es256(), es256());
    new.published["kid"] = "f".into();
    let provider = crate::refresh::tests::KeyProvider::start(None).await;
    provider.publish(&json!({"keys": [old.published]}).to_string());
    let (issuer, audience) = ("https://id.example.org".to_owned(), vec!["plimsoll".to_owned()]);
    let keys = KeySet::Published { url: provider.url.clone(), authorities: PathBuf::new() };
    let mut tokens = TokenVerifier::open(JwtSettings { issuer, audience, keys }).unwrap();
    let KeySource::Published(remote) = &mut tokens.keys else { panic!("not published") };
    Arc::get_mut(remote).unwrap().soonest = std::time::Duration::from_millis(20);
    let good = async |signer: &TestSigner| tokens.check(&signer.sign(&claims())).await.is_ok();
    tokens.keep();
    while !good(&old).await {
        tokio::task::yield_now().await;
    }
    assert!(!good(&new).await);
    provider.publish(&json!({"keys": [new.published]}).to_string());
    assert!(good(&old).await, "it is not asked for every token");
    while !good(&new).await {
        tokio::task::yield_now().await;
    }
    assert!(!good(&old).await, "what is no longer published does not count");
}
